-- name: publish_batch
-- Publishes many events, a JSON array of objects named as the arguments of publish, with the payload in base64, in
-- array order. Returns how many, and the duplicates: their places (from 0) and the ids of the earlier events. If one
-- event is wrong, none is published, and the error names its place. Raises PS002, PS004, PS005, PS006, PS018, PS022,
-- PS052.
CREATE PROCEDURE publish_batch(events JSON, strict BOOLEAN)
BEGIN
    DECLARE id_before BIGINT DEFAULT LAST_INSERT_ID();
    DECLARE published BIGINT;
    DECLARE duplicates JSON;
    {{on error: CALL undo_call(); DO LAST_INSERT_ID(id_before)}}
    CALL begin_call('publish_batch()');
    CALL insert_batch(events, strict, published, duplicates);
    DO LAST_INSERT_ID(id_before);
    CALL answer_batch(published, duplicates);
    CALL end_call();
END;
