-- The application's own tables.
CREATE TABLE IF NOT EXISTS orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer text NOT NULL);
CREATE TABLE IF NOT EXISTS bills (order_id bigint PRIMARY KEY, program text NOT NULL);
