-- name: standing_of
-- Where a partition of a subscription stands, and whether a person has put it there and nothing was done since.
CREATE OR REPLACE FUNCTION standing_of(subscription_id bigint, partition_id bigint)
RETURNS TABLE (stands_at bigint, was_put boolean)
LANGUAGE sql STABLE AS $$
    SELECT p.position, p.reason IN ('start', 'seek')
    FROM positions AS p
    WHERE p.subscription_id = standing_of.subscription_id AND p.partition_id = standing_of.partition_id
    ORDER BY p.id DESC
    LIMIT 1
$$;
