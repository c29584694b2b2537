-- The application's own tables.
CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer text NOT NULL);
CREATE TABLE bills (order_id bigint PRIMARY KEY, program text NOT NULL);
