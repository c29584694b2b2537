-- What the consumers maintain, and what the demo measures with.
CREATE SCHEMA demo;

CREATE TABLE demo.projection (
    account bigint PRIMARY KEY,
    balance bigint NOT NULL,
    events bigint NOT NULL,
    disorder bigint NOT NULL
);

-- When each event took effect; without a key, so that an effect that came twice is seen twice.
CREATE TABLE demo.handled (
    event_id uuid NOT NULL,
    handled_at timestamptz NOT NULL
);

-- Counts hand-outs of events; a sequence, because it counts those too whose transaction was rolled back.
CREATE SEQUENCE demo.deliveries MINVALUE 0 START 0;
