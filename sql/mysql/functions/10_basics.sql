-- name: refuse
-- Raises one of Penstock's errors: SQLSTATE of class PS, number 31000 and more, and what was wrong in at most 128
-- characters. The programs add what to do, because an error of these databases has no field for it.
CREATE PROCEDURE refuse(code CHAR(5), problem TEXT)
BEGIN
    DECLARE number INT DEFAULT 31000 + CAST(SUBSTR(code, 3) AS UNSIGNED);
    DECLARE words VARCHAR(128) DEFAULT LEFT(problem, 128);
    -- A condition value is a literal.
    CASE code
        WHEN 'PS001' THEN SIGNAL SQLSTATE 'PS001' SET MYSQL_ERRNO = number, MESSAGE_TEXT = words;
        WHEN 'PS002' THEN SIGNAL SQLSTATE 'PS002' SET MYSQL_ERRNO = number, MESSAGE_TEXT = words;
        WHEN 'PS003' THEN SIGNAL SQLSTATE 'PS003' SET MYSQL_ERRNO = number, MESSAGE_TEXT = words;
        WHEN 'PS004' THEN SIGNAL SQLSTATE 'PS004' SET MYSQL_ERRNO = number, MESSAGE_TEXT = words;
        WHEN 'PS005' THEN SIGNAL SQLSTATE 'PS005' SET MYSQL_ERRNO = number, MESSAGE_TEXT = words;
        WHEN 'PS006' THEN SIGNAL SQLSTATE 'PS006' SET MYSQL_ERRNO = number, MESSAGE_TEXT = words;
        WHEN 'PS007' THEN SIGNAL SQLSTATE 'PS007' SET MYSQL_ERRNO = number, MESSAGE_TEXT = words;
        WHEN 'PS010' THEN SIGNAL SQLSTATE 'PS010' SET MYSQL_ERRNO = number, MESSAGE_TEXT = words;
        WHEN 'PS011' THEN SIGNAL SQLSTATE 'PS011' SET MYSQL_ERRNO = number, MESSAGE_TEXT = words;
        WHEN 'PS012' THEN SIGNAL SQLSTATE 'PS012' SET MYSQL_ERRNO = number, MESSAGE_TEXT = words;
        WHEN 'PS013' THEN SIGNAL SQLSTATE 'PS013' SET MYSQL_ERRNO = number, MESSAGE_TEXT = words;
        WHEN 'PS014' THEN SIGNAL SQLSTATE 'PS014' SET MYSQL_ERRNO = number, MESSAGE_TEXT = words;
        WHEN 'PS015' THEN SIGNAL SQLSTATE 'PS015' SET MYSQL_ERRNO = number, MESSAGE_TEXT = words;
        WHEN 'PS016' THEN SIGNAL SQLSTATE 'PS016' SET MYSQL_ERRNO = number, MESSAGE_TEXT = words;
        WHEN 'PS017' THEN SIGNAL SQLSTATE 'PS017' SET MYSQL_ERRNO = number, MESSAGE_TEXT = words;
        WHEN 'PS018' THEN SIGNAL SQLSTATE 'PS018' SET MYSQL_ERRNO = number, MESSAGE_TEXT = words;
        WHEN 'PS019' THEN SIGNAL SQLSTATE 'PS019' SET MYSQL_ERRNO = number, MESSAGE_TEXT = words;
        WHEN 'PS020' THEN SIGNAL SQLSTATE 'PS020' SET MYSQL_ERRNO = number, MESSAGE_TEXT = words;
        WHEN 'PS021' THEN SIGNAL SQLSTATE 'PS021' SET MYSQL_ERRNO = number, MESSAGE_TEXT = words;
        WHEN 'PS022' THEN SIGNAL SQLSTATE 'PS022' SET MYSQL_ERRNO = number, MESSAGE_TEXT = words;
        WHEN 'PS023' THEN SIGNAL SQLSTATE 'PS023' SET MYSQL_ERRNO = number, MESSAGE_TEXT = words;
        WHEN 'PS025' THEN SIGNAL SQLSTATE 'PS025' SET MYSQL_ERRNO = number, MESSAGE_TEXT = words;
        WHEN 'PS026' THEN SIGNAL SQLSTATE 'PS026' SET MYSQL_ERRNO = number, MESSAGE_TEXT = words;
        WHEN 'PS027' THEN SIGNAL SQLSTATE 'PS027' SET MYSQL_ERRNO = number, MESSAGE_TEXT = words;
        WHEN 'PS028' THEN SIGNAL SQLSTATE 'PS028' SET MYSQL_ERRNO = number, MESSAGE_TEXT = words;
        WHEN 'PS029' THEN SIGNAL SQLSTATE 'PS029' SET MYSQL_ERRNO = number, MESSAGE_TEXT = words;
        WHEN 'PS030' THEN SIGNAL SQLSTATE 'PS030' SET MYSQL_ERRNO = number, MESSAGE_TEXT = words;
        WHEN 'PS031' THEN SIGNAL SQLSTATE 'PS031' SET MYSQL_ERRNO = number, MESSAGE_TEXT = words;
        WHEN 'PS032' THEN SIGNAL SQLSTATE 'PS032' SET MYSQL_ERRNO = number, MESSAGE_TEXT = words;
        WHEN 'PS033' THEN SIGNAL SQLSTATE 'PS033' SET MYSQL_ERRNO = number, MESSAGE_TEXT = words;
        WHEN 'PS034' THEN SIGNAL SQLSTATE 'PS034' SET MYSQL_ERRNO = number, MESSAGE_TEXT = words;
        WHEN 'PS035' THEN SIGNAL SQLSTATE 'PS035' SET MYSQL_ERRNO = number, MESSAGE_TEXT = words;
        WHEN 'PS040' THEN SIGNAL SQLSTATE 'PS040' SET MYSQL_ERRNO = number, MESSAGE_TEXT = words;
        WHEN 'PS041' THEN SIGNAL SQLSTATE 'PS041' SET MYSQL_ERRNO = number, MESSAGE_TEXT = words;
        WHEN 'PS042' THEN SIGNAL SQLSTATE 'PS042' SET MYSQL_ERRNO = number, MESSAGE_TEXT = words;
        WHEN 'PS043' THEN SIGNAL SQLSTATE 'PS043' SET MYSQL_ERRNO = number, MESSAGE_TEXT = words;
        WHEN 'PS044' THEN SIGNAL SQLSTATE 'PS044' SET MYSQL_ERRNO = number, MESSAGE_TEXT = words;
        ELSE SIGNAL SQLSTATE 'PS099' SET MYSQL_ERRNO = 31099, MESSAGE_TEXT = words;
    END CASE;
END;

-- name: begin_call
-- Opens a procedure that changes something. The procedure calls it first. A procedure is not atomic by itself. On a
-- connection that commits every statement it could be applied in part, so that is refused (PS018). undo_call goes
-- back to the savepoint penstock_call. The savepoint penstock_open says that a call is under way. end_call and
-- undo_call remove it, and so does a ROLLBACK, also one to a savepoint from before the call. No handler runs when a
-- statement is killed (KILL QUERY, a time limit): then penstock_open stays, and the next call in that transaction is
-- refused (PS023). A session that sets the next id or the step between ids is refused too (PS006): all sessions share
-- the counters, and one that is used up stops the log for all. So is a session that sets its own time: events,
-- deadlines and repairs use the server's clock. For the isolation levels and settings that are refused, see
-- refuse_serializable.
CREATE PROCEDURE begin_call(what VARCHAR(100))
BEGIN
    DECLARE is_torn BOOLEAN DEFAULT TRUE;
    DECLARE CONTINUE HANDLER FOR 1305
        CALL refuse('PS018', CONCAT(what, ' needs a transaction: START TRANSACTION first'));
    BEGIN
        DECLARE CONTINUE HANDLER FOR 1305 SET is_torn = FALSE;
        RELEASE SAVEPOINT penstock_open;
    END;
    IF is_torn THEN
        -- Set again, for the calls after this one. penstock_call is not set: only the caller knows what it has done
        -- since.
        SAVEPOINT penstock_open;
        CALL refuse('PS023',
                    CONCAT('a call before ', what, ' was interrupted in this transaction, and is done in part'));
    END IF;
    IF @@SESSION.insert_id <> 0 OR @@SESSION.auto_increment_increment <> 1 THEN
        CALL refuse('PS006', CONCAT(what, ' needs a session without insert_id and with auto_increment_increment = 1'));
    ELSEIF TIMESTAMPDIFF(SECOND, NOW(6), SYSDATE(6)) NOT BETWEEN -10 AND 10 THEN
        CALL refuse('PS006', CONCAT(what, ' needs a session that has not set its timestamp'));
    END IF;
    CALL refuse_serializable(what);
    SAVEPOINT penstock_open;
    SAVEPOINT penstock_call;
    -- Outside a transaction the savepoint is gone already.
    ROLLBACK TO SAVEPOINT penstock_call;
END;

-- name: end_call
-- Closes what begin_call has opened. The procedure calls it last, after its result. A caller that gets an error
-- either finds everything undone or has its next calls refused. The one exception is a kill that comes after
-- end_call: it reports 1317 for a call that is complete. So after 1317 the outcome is unknown, and the caller has to
-- ROLLBACK. end_call removes penstock_call too. Otherwise, if a later call failed before it had begun, its undo would
-- take this call back.
CREATE PROCEDURE end_call()
BEGIN
    RELEASE SAVEPOINT penstock_open;
END;

-- name: undo_call
-- Undoes what a failed procedure has done, and nothing that the caller did before it. After a deadlock the server has
-- already rolled back everything, the savepoint too.
CREATE PROCEDURE undo_call()
BEGIN
    DECLARE EXIT HANDLER FOR 1305 BEGIN END;
    ROLLBACK TO SAVEPOINT penstock_call;
    RELEASE SAVEPOINT penstock_open;
END;

-- name: refuse_serializable
-- Refuses a session whose isolation is neither READ COMMITTED nor REPEATABLE READ (PS018). At SERIALIZABLE a query
-- locks what it reads to the end of the transaction, and the sequencer and all publishers would wait for it. At READ
-- UNCOMMITTED a reader sees a pass that may still be rolled back. Every procedure that a role may call calls this, or
-- begin_call. A procedure cannot see what SET TRANSACTION without SESSION has set for one transaction. This also
-- refuses settings that change what a procedure does (PS006): see refuse_settings.
CREATE PROCEDURE refuse_serializable(what VARCHAR(100))
NO SQL
BEGIN
    -- Each of the two engines reads the comment that is meant for it.
    IF /*!80000 @@SESSION.transaction_isolation */ /*M! @@SESSION.tx_isolation */ = 'SERIALIZABLE' THEN
        CALL refuse('PS018',
                    CONCAT(what, ' locks what it reads at SERIALIZABLE: use READ COMMITTED or REPEATABLE READ'));
    ELSEIF /*!80000 @@SESSION.transaction_isolation */ /*M! @@SESSION.tx_isolation */ = 'READ-UNCOMMITTED' THEN
        CALL refuse('PS018',
                    CONCAT(what, ' reads too much at READ UNCOMMITTED: use READ COMMITTED or REPEATABLE READ'));
    ELSEIF NOT @@SESSION.sql_big_selects OR NOT @@SESSION.unique_checks OR NOT @@SESSION.foreign_key_checks
        OR @@SESSION.sql_auto_is_null OR @@SESSION.max_error_count < 64 OR @@SESSION.max_sort_length < 1024
        OR @@SESSION.tmp_table_size BETWEEN 1 AND 65535
        OR @@SESSION./*!80000 cte_max_recursion_depth */ /*M! max_recursive_iterations */ < 1000
        /*M! OR @@SESSION.default_regex_flags <> '' */ THEN
        CALL refuse_settings(what);
    END IF;
END;

-- name: refuse_settings
-- Names the setting for which refuse_serializable refuses a session (PS006). Some settings limit the size of a query,
-- its recursion or its temporary tables. Only the check of rights would fail at such a limit, and that error would
-- tell a hidden topic from a missing one. Without unique_checks and foreign_key_checks MariaDB locks the whole of an
-- empty table for its first insert, so that one publisher would stop all others. Without foreign_key_checks the rows
-- of a consumer that leaves would stay. sql_auto_is_null and max_sort_length change what a query finds. A procedure
-- whose warnings are not kept does not notice that it found nothing. default_regex_flags of MariaDB gives every
-- pattern another meaning: names with control characters and headers that are not a JSON object would be let in.
CREATE PROCEDURE refuse_settings(what VARCHAR(100))
NO SQL
BEGIN
    CALL refuse('PS006', CONCAT(what, ' needs a session with ', CASE
        WHEN NOT @@SESSION.sql_big_selects THEN 'sql_big_selects = 1, as it is without max_join_size'
        WHEN NOT @@SESSION.unique_checks THEN 'unique_checks = 1'
        WHEN NOT @@SESSION.foreign_key_checks THEN 'foreign_key_checks = 1'
        WHEN @@SESSION.sql_auto_is_null THEN 'sql_auto_is_null = 0'
        WHEN @@SESSION.max_error_count < 64 THEN 'max_error_count of 64 or more'
        WHEN @@SESSION.max_sort_length < 1024 THEN 'max_sort_length of 1024 or more'
        WHEN @@SESSION.tmp_table_size BETWEEN 1 AND 65535 THEN 'tmp_table_size of 65536 or more'
        /*M! WHEN @@SESSION.default_regex_flags <> '' THEN 'default_regex_flags of none' */
        ELSE /*!80000 'cte_max_recursion_depth of 1000 or more' */ /*M! 'max_recursive_iterations of 1000 or more' */
    END));
END;

-- name: require_read_committed
-- Refuses other isolation levels (PS018): they also lock gaps between rows, and a snapshot that is older than a lock
-- does not see what the lock protects.
CREATE PROCEDURE require_read_committed(what VARCHAR(100))
BEGIN
    DECLARE level VARCHAR(40);
    -- Each of the two engines reads the comment that is meant for it.
    SET level = /*!80000 @@SESSION.transaction_isolation */ /*M! @@SESSION.tx_isolation */;
    IF level <> 'READ-COMMITTED' THEN
        CALL refuse('PS018', CONCAT(what, ' needs READ COMMITTED, not ', level));
    END IF;
END;

-- name: partition_of
-- The partition of a key: the same on every engine and in Python. Stored events keep the partition that they were
-- given.
CREATE PROCEDURE partition_of(`key` LONGTEXT, partitions INT)
NO SQL
BEGIN
    SELECT MOD(CRC32(`key`), partitions) AS `partition`;
END;

-- name: topic_lookup
-- What a publisher needs to know of a topic; no row when the topic does not exist or the login may not
-- publish to it.
CREATE PROCEDURE topic_lookup(topic VARCHAR(4000))
READS SQL DATA
BEGIN
    CALL refuse_serializable('topic_lookup()');
    SELECT t.id AS topic_id, t.partitions, t.max_payload_bytes, (SELECT MAX(h.history) FROM histories AS h) AS history,
           t.strategy
    FROM topics AS t
    WHERE t.address_hash = UNHEX(SHA2(topic, 256)) AND (NOT t.restricted OR has_right(t.namespace_id, 'publish'));
END;

-- name: refuse_topic
-- Raises the error that there is no such topic (PS002), in the same words whether it is missing or hidden.
CREATE PROCEDURE refuse_topic(topic LONGTEXT)
NO SQL
BEGIN
    CALL refuse('PS002', CONCAT('there is no topic "', COALESCE(LEFT(topic, 100), ''), '"'));
END;

-- name: require_right
-- Refuses a topic in whose namespace the login does not hold a right (see has_right); raises PS002. To be called for
-- restricted topics only: any statement that mentions has_right makes the server open the tables of rights.
CREATE PROCEDURE require_right(topic LONGTEXT, of_namespace BIGINT, verb VARCHAR(20))
READS SQL DATA
BEGIN
    DECLARE is_held BOOLEAN DEFAULT has_right(of_namespace, verb);
    IF NOT is_held THEN
        CALL refuse_topic(topic);
    END IF;
END;

-- name: find_topic_for
-- The id of a topic in which the login holds a right (see has_right); raises PS002.
CREATE PROCEDURE find_topic_for(topic VARCHAR(4000), verb VARCHAR(20), OUT topic_id BIGINT)
READS SQL DATA
BEGIN
    DECLARE asked_in BIGINT;
    -- A query in SET, IF, DEFAULT, VALUES or the argument of a CALL locks what it reads to the end of the transaction,
    -- on both engines; SELECT .. INTO does not.
    SELECT MAX(t.id), MAX(IF(t.restricted, t.namespace_id, NULL)) INTO topic_id, asked_in
    FROM topics AS t
    WHERE t.address_hash = UNHEX(SHA2(topic, 256));
    IF topic_id IS NULL THEN
        CALL refuse_topic(topic);
    ELSEIF asked_in IS NOT NULL THEN
        CALL require_right(topic, asked_in, verb);
    END IF;
END;

-- name: find_topic
-- The id of a topic that the login may read; raises PS002.
CREATE PROCEDURE find_topic(topic VARCHAR(4000), OUT topic_id BIGINT)
READS SQL DATA
BEGIN
    CALL find_topic_for(topic, 'read', topic_id);
END;

-- name: find_partition
-- The id of a partition of a topic that the login may read. Raises PS002 or PS005.
CREATE PROCEDURE find_partition(topic VARCHAR(4000), number INT, OUT partition_id BIGINT)
READS SQL DATA
BEGIN
    CALL find_partition_for(topic, number, 'read', partition_id);
END;

-- name: find_partition_for
-- The id of a partition of a topic in which the login holds a right; raises PS002 or PS005.
CREATE PROCEDURE find_partition_for(topic VARCHAR(4000), number INT, verb VARCHAR(20), OUT partition_id BIGINT)
READS SQL DATA
BEGIN
    DECLARE owner_id BIGINT;
    CALL find_topic_for(topic, verb, owner_id);
    SELECT MAX(p.id) INTO partition_id FROM partitions AS p WHERE p.topic_id = owner_id AND p.number = number;
    IF partition_id IS NULL THEN
        CALL refuse('PS005', CONCAT('topic "', topic, '" has no partition ', COALESCE(number, 'NULL')));
    END IF;
END;

-- name: current_history
-- The line of history that positions belong to now.
CREATE PROCEDURE current_history()
READS SQL DATA
BEGIN
    CALL refuse_serializable('current_history()');
    SELECT MAX(h.history) AS history FROM histories AS h;
END;
