-- name: lsn_of
-- The position of a sequence in the log, as text and as the log epoch that is a part of it: 0 while the sequence is not
-- sealed. Raises PS002, PS005, PS006.
CREATE PROCEDURE lsn_of(topic VARCHAR(4000), `partition` INT, sequence BIGINT)
READS SQL DATA
BEGIN
    DECLARE source, checked BIGINT;
    DECLARE log_epoch INT;
    CALL refuse_serializable('lsn_of()');
    CALL require_partition(topic, `partition`, source);
    CALL find_log_epoch_at(source, sequence, log_epoch);
    CALL parse_lsn(CONCAT(log_epoch, '.', sequence), log_epoch, checked);
    SELECT CONCAT(log_epoch, '.', sequence) AS lsn, log_epoch;
END;

-- name: sequence_of
-- The sequence of a position of the log, checked: its log epoch has to be the one that holds the sequence. Log epoch 0
-- is not checked, because the sequence may have been sealed since. Raises PS002, PS005, PS006, PS019.
CREATE PROCEDURE sequence_of(topic VARCHAR(4000), `partition` INT, lsn LONGTEXT)
READS SQL DATA
BEGIN
    DECLARE source, given_sequence BIGINT;
    CALL refuse_serializable('sequence_of()');
    CALL require_partition(topic, `partition`, source);
    CALL require_sequence(source, lsn, given_sequence);
    SELECT given_sequence AS sequence;
END;

-- name: position_at
-- The position before the first event of a partition that was sequenced at a time or later; the high watermark when
-- there is none. If such an event may have been dropped, this raises PS016. Raises PS002, PS005, PS006, PS016.
CREATE PROCEDURE position_at(topic VARCHAR(4000), `partition` INT, since DATETIME(6))
READS SQL DATA
BEGIN
    DECLARE source_id, wanted BIGINT;
    CALL refuse_serializable('position_at()');
    CALL require_partition(topic, `partition`, source_id);
    IF since IS NULL THEN
        CALL refuse('PS006', 'the time is NULL');
    END IF;
    CALL position_before(source_id, since, wanted);
    SELECT wanted AS `position`;
END;

-- name: locate_time
-- The position before the first event of a partition that was sequenced at a time or later, where the database knows
-- it. Where such an event may have been dropped, position is NULL, and the log epoch is the one in which to look
-- first: no event before it was sequenced then. Raises PS002, PS005, PS006, PS016.
CREATE PROCEDURE locate_time(topic VARCHAR(4000), `partition` INT, since DATETIME(6))
READS SQL DATA
BEGIN
    DECLARE source_id, wanted, epoch_begins, epoch_ends BIGINT;
    DECLARE in_epoch INT;
    CALL refuse_serializable('locate_time()');
    CALL require_partition(topic, `partition`, source_id);
    IF since IS NULL THEN
        CALL refuse('PS006', 'the time is NULL');
    END IF;
    CALL position_since(source_id, since, wanted, in_epoch);
    IF wanted IS NULL AND in_epoch IS NULL THEN
        CALL refuse('PS016', CONCAT('events sequenced since ', since, ' were dropped, and no seal says which'));
    END IF;
    SELECT MAX(e.first_sequence), MAX(e.last_sequence) INTO epoch_begins, epoch_ends
    FROM log_epochs AS e
    WHERE e.partition_id = source_id AND e.log_epoch = in_epoch;
    SELECT wanted AS `position`, in_epoch AS log_epoch, epoch_begins AS first_sequence, epoch_ends AS last_sequence;
END;
