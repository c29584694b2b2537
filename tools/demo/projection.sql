-- The table that the consumers maintain, and what the demo needs to measure.
CREATE SCHEMA demo;

CREATE TABLE demo.projection (
    account bigint PRIMARY KEY,
    balance bigint NOT NULL,
    events bigint NOT NULL,
    disorder bigint NOT NULL
);

-- When each event took effect. It has no key, so an effect that happened twice has two rows.
CREATE TABLE demo.handled (
    event_id uuid NOT NULL,
    handled_at timestamptz NOT NULL
);

-- Counts hand-outs of events. It is a sequence, which also counts those whose transaction was rolled back.
CREATE SEQUENCE demo.deliveries MINVALUE 0 START 0;
