-- name: forward_letters
-- What every burial calls: publishes a copy of each of these dead letters to the topic that their subscription names,
-- in the caller's transaction, and marks the letter with where its copy went. A letter that the topic does not take is
-- marked with the reason instead, so that no burial fails because of the topic. Neither topic nor partition is locked:
-- the copy in a topic that is deleted meanwhile goes with the topic.
CREATE OR REPLACE FUNCTION forward_letters(owner_id bigint, letter_ids bigint[]) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS $$
DECLARE
    owner subscriptions%ROWTYPE;
    target topics%ROWTYPE;
BEGIN
    SELECT s.* INTO owner FROM subscriptions AS s WHERE s.id = owner_id AND s.dead_letters_to IS NOT NULL;
    IF NOT FOUND OR COALESCE(cardinality(letter_ids), 0) = 0 THEN
        RETURN;
    END IF;
    SELECT t.* INTO target FROM topics AS t WHERE t.id = owner.dead_letters_to;
    WITH dead AS MATERIALIZED (
        SELECT d.*, new_event_id() AS copy_id, letter_headers(owner, d) AS copy_headers,
               choose_partition(target.id, target.partitions, target.strategy, d.key, NULL) AS place
        FROM dead_letters AS d
        WHERE d.subscription_id = owner_id AND d.id = ANY (letter_ids) AND d.redriven_at IS NULL
    ), judged AS MATERIALIZED (
        SELECT d.*, forward_problem(owner, target, d.partition_id, d.key, d.type, d.content_type, d.payload,
                                    d.headers, d.copy_headers, d.place) AS problem
        FROM dead AS d
    ), copied AS (
        INSERT INTO events (partition_id, event_id, key, type, content_type, headers, payload)
        SELECT j.place, j.copy_id, j.key, j.type, j.content_type, j.copy_headers, j.payload
        FROM judged AS j
        WHERE j.problem IS NULL
        ORDER BY j.partition_id, j.history, j.sequence
        RETURNING id, event_id
    ), noted AS (
        INSERT INTO letter_copies (
            copy_id, topic_id, subscription_id, letter_id, partition_id, sequence, history, event_id, key,
            copy_partition_id, row_id)
        SELECT j.copy_id, target.id, owner_id, j.id, j.partition_id, j.sequence, j.history, j.event_id, j.key, j.place,
               n.id
        FROM judged AS j JOIN copied AS n ON n.event_id = j.copy_id
    )
    UPDATE dead_letters AS d
    SET forwarded_to = CASE WHEN j.problem IS NULL THEN target.id END,
        forwarded_as = CASE WHEN j.problem IS NULL THEN j.copy_id END, not_forwarded = j.problem
    FROM judged AS j
    WHERE d.subscription_id = owner_id AND d.id = j.id;
END
$$;

-- name: letter_headers
-- The headers of a dead letter's copy: those of the event, why it died, how often it was handed out since its last
-- redrive (attempts) and in all (deliveries), where it comes from, and how often it was forwarded.
CREATE OR REPLACE FUNCTION letter_headers(owner subscriptions, letter dead_letters) RETURNS jsonb
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN COALESCE(letter.headers, '{}') || jsonb_build_object(
        'penstock-letter-reason', letter.reason,
        'penstock-letter-attempts', letter.attempts - letter.attempts_before,
        'penstock-letter-deliveries', letter.attempts,
        'penstock-letter-subscription', owner.name,
        'penstock-letter-topic', (SELECT t.address FROM topics AS t WHERE t.id = letter.partition_id >> 16),
        'penstock-letter-topic-id', letter.partition_id >> 16,
        'penstock-letter-partition', letter.partition_id & 65535,
        'penstock-letter-sequence', letter.sequence,
        'penstock-letter-history', letter.history,
        'penstock-letter-event-id', letter.event_id,
        'penstock-letter-hops', letter_hops(letter.headers) + 1);
END
$$;

-- name: letter_hops
-- How often an event was forwarded as a dead letter, by its headers.
CREATE OR REPLACE FUNCTION letter_hops(headers jsonb) RETURNS integer
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN letter_hops.headers ->> 'penstock-letter-hops' ~ '^[0-9]{1,6}$'
                THEN (letter_hops.headers ->> 'penstock-letter-hops')::integer ELSE 0 END
$$;

-- name: forward_problem
-- Why a topic does not take the copy of a dead letter, or NULL. The rights are those of the login or account that has
-- named the topic, to consume the event and to publish its copy: whoever buries only consumes. The hops end a circle
-- that was made after the topic was named.
CREATE OR REPLACE FUNCTION forward_problem(
    owner subscriptions, target topics, partition_id bigint, key text, type text, content_type text, payload bytea,
    headers jsonb, copy_headers jsonb, place bigint
) RETURNS text
LANGUAGE plpgsql STABLE AS $$
DECLARE
    problem text;
BEGIN
    IF target.id IS NULL THEN
        RETURN 'the topic was deleted';
    ELSIF NOT may_forward(owner.dead_letters_by, target) THEN
        RETURN 'whoever has named the topic may no longer publish to it';
    ELSIF NOT principal_may(
        owner.dead_letters_by, (SELECT t FROM topics AS t WHERE t.id = forward_problem.partition_id >> 16),
        'consume')
    THEN
        RETURN 'whoever has named the topic may not consume the event';
    ELSIF target.id = forward_problem.partition_id >> 16 THEN
        RETURN 'the event comes from this topic: it would go round in a circle';
    ELSIF letter_hops(forward_problem.headers) >= 8 THEN
        RETURN 'it was forwarded 8 times already: it may go round in a circle';
    ELSIF is_tombstone(forward_problem.payload, forward_problem.headers) THEN
        RETURN 'the event was erased';
    END IF;
    problem := substr(event_problem(
        octet_length(forward_problem.payload), forward_problem.key, forward_problem.type, forward_problem.content_type,
        copy_headers, NULL, NULL, NULL, target.partitions, target.strategy, target.max_payload_bytes, NULL), 7);
    IF problem IS NULL AND (target.max_unsequenced_events IS NOT NULL OR target.max_unsequenced_bytes IS NOT NULL) THEN
        problem := (pressure_problem(ARRAY[place])).problem;
    END IF;
    RETURN problem;
END
$$;

-- name: may_forward
-- Whether a login or account that has named a topic for dead letters may publish to it now.
CREATE OR REPLACE FUNCTION may_forward(who text, target topics) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN principal_may(may_forward.who, target, 'publish');
END
$$;

-- name: principal_may
-- Whether a login or account, as principal() has named it, has a right in the namespace of a topic now. Whoever carries
-- out the call is not asked. A login that was dropped, or has another name now, has none, nor has a deleted account.
CREATE OR REPLACE FUNCTION principal_may(who text, topic topics, verb text) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF starts_with(who, 'account:') THEN
        RETURN EXISTS (SELECT FROM accounts AS a WHERE a.id = substr(who, 9))
            AND account_has_right(substr(who, 9), topic.namespace_id, principal_may.verb);
    END IF;
    RETURN COALESCE(
        NOT topic.restricted
        OR login_has_right(to_regrole(quote_ident(regexp_replace(who, '^login:', ''))), topic.namespace_id,
                           principal_may.verb), false);
END
$$;

-- name: forwarding_problem
-- Why nothing of a subscription is forwarded although it names a topic, or NULL: whoever has named it lost one
-- of the rights that are asked at each burial.
CREATE OR REPLACE FUNCTION forwarding_problem(owner subscriptions) RETURNS text
LANGUAGE plpgsql STABLE AS $$
DECLARE
    target topics%ROWTYPE;
BEGIN
    SELECT t.* INTO target FROM topics AS t WHERE t.id = owner.dead_letters_to;
    RETURN CASE
        WHEN target.id IS NULL THEN NULL
        WHEN NOT may_forward(owner.dead_letters_by, target)
            THEN 'whoever has named the topic may no longer publish to it'
        WHEN EXISTS (
            SELECT FROM subscription_topics AS r JOIN topics AS t ON t.id = r.topic_id
            WHERE r.subscription_id = owner.id AND NOT principal_may(owner.dead_letters_by, t, 'consume'))
            THEN 'whoever has named the topic may not consume the events'
    END;
END
$$;

-- name: refuse_forwarding
-- Refuses to delete topics that subscriptions name for their dead letters (PS020). Where whoever has named one may
-- no longer publish to it, nothing of it is forwarded, and it does not keep the topic.
CREATE OR REPLACE FUNCTION refuse_forwarding(topic_ids bigint[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    named record;
BEGIN
    SELECT s.id, t.address INTO named
    FROM subscriptions AS s JOIN topics AS t ON t.id = s.dead_letters_to
    WHERE s.dead_letters_to = ANY (topic_ids) AND may_forward(s.dead_letters_by, t)
    ORDER BY s.name
    LIMIT 1;
    IF FOUND THEN
        PERFORM refuse('PS020', format('%s publishes its dead letters to "%s"', told_subscription(named.id),
                                       left(named.address, 200)),
                       'Let it name another, or none: penstock dead-letter forward; or revoke its right to publish.');
    END IF;
END
$$;

-- name: refuse_circle
-- Refuses dead letters that would come back (PS006): walks from the topic that a subscription names to the topics that
-- its readers name, and so on.
CREATE OR REPLACE FUNCTION refuse_circle(owner_id bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    back text;
BEGIN
    WITH RECURSIVE reached AS (
        SELECT s.dead_letters_to AS id FROM subscriptions AS s WHERE s.id = owner_id
        UNION
        SELECT s.dead_letters_to
        FROM reached AS r
        JOIN subscription_topics AS o ON o.topic_id = r.id
        JOIN subscriptions AS s ON s.id = o.subscription_id
        WHERE s.dead_letters_to IS NOT NULL
    )
    SELECT min(t.address) INTO back
    FROM reached AS r
    JOIN subscription_topics AS o ON o.subscription_id = owner_id AND o.topic_id = r.id
    JOIN topics AS t ON t.id = r.id;
    IF back IS NOT NULL THEN
        PERFORM refuse('PS006', format('its dead letters would come back to "%s", which it reads', left(back, 200)),
                       'Name a topic from which no subscription forwards dead letters to one of its own topics.');
    END IF;
END
$$;

-- name: require_publisher
-- Refuses a login that may not call publish at all (PS006): naming a topic for dead letters publishes to it.
CREATE OR REPLACE FUNCTION require_publisher(topic text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (
        SELECT FROM pg_proc AS p
        WHERE p.pronamespace = current_schema()::regnamespace AND p.proname = 'publish'
          AND has_function_privilege(session_user, p.oid, 'EXECUTE'))
    THEN
        PERFORM refuse('PS006', format('the login may not publish, so nothing of it goes to "%s"', left(topic, 200)),
                       'Make it a member of the publisher role: penstock rights grant LOGIN publisher.');
    END IF;
END
$$;
