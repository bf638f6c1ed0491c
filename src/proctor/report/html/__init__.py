"""A run as one HTML file: `page` puts it together, the .css and .js beside it are what it wears.

`theme.css` holds what any page of Proctor shares (colours, type, tables, controls); a viewer uses
it as it is. `report.css` and the scripts belong to the report.
"""
