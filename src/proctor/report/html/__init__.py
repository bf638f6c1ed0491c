"""A run as one HTML file: `page` renders the templates, with the styles and scripts inline.

`theme.css` (colours, type, tables, controls) and `core.js` are shared with the viewer; the other
styles and scripts belong to the report.
"""
