CREATE TABLE orders (number INTEGER PRIMARY KEY, status TEXT, carrier TEXT, shipping TEXT);
CREATE TABLE items (order_number INTEGER, product TEXT, quantity INTEGER, price TEXT);
CREATE TABLE stock (product TEXT PRIMARY KEY, available INTEGER);
INSERT INTO orders VALUES
  (1017, 'delivered', 'Nordpost', '4.90'),
  (1042, 'on its way', 'Nordpost', '4.90'),
  (1055, 'being packed', NULL, '0.00');
INSERT INTO items VALUES
  (1017, 'rain cape', 1, '59.00'),
  (1042, 'touring helmet', 2, '49.90'),
  (1042, 'city bike', 1, '389.00'),
  (1055, 'floor pump', 3, '24.50');
INSERT INTO stock VALUES
  ('touring helmet', 14), ('city bike', 2), ('rain cape', 0), ('floor pump', 31);
