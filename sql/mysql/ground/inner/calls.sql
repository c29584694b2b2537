-- By design: PostgreSQL undoes a failed function itself; a procedure of MySQL sets a savepoint and undoes itself.

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

-- name: begin_call
-- Opens a procedure that changes something. The procedure calls it first. A procedure is not atomic by itself. On a
-- connection that commits every statement it could be applied in part, so that is refused (PS018). undo_call goes
-- back to the savepoint penstock_call. The savepoint penstock_open says that a call is under way. end_call and
-- undo_call remove it, and so does a ROLLBACK, also one to a savepoint from before the call. No handler runs when a
-- statement is killed (KILL QUERY, a time limit): then penstock_open stays, and the next call in that transaction is
-- refused (PS023). A session that sets the next id or the step between ids is refused too (PS006): all sessions share
-- the counters, and one that is used up stops the log for all. So is a session that sets its own time: events,
-- deadlines and repairs use the server's clock. For the isolation levels and settings that are refused, see
-- refuse_serializable. The handlers of error 1305 cover a savepoint only: migrate may be replacing what is called here.
CREATE PROCEDURE begin_call(what VARCHAR(100))
BEGIN
    DECLARE is_torn BOOLEAN DEFAULT TRUE;
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
    BEGIN
        DECLARE EXIT HANDLER FOR 1305
            CALL refuse('PS018', CONCAT(what, ' needs a transaction: START TRANSACTION first'));
        -- Outside a transaction the savepoint is gone already.
        ROLLBACK TO SAVEPOINT penstock_call;
    END;
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
-- refuses settings that change what a procedure does (PS006): see refuse_settings. And it is the gate of accounts: a
-- gateway's login that has named none in this transaction, or any other that has, is refused (PS051).
CREATE PROCEDURE refuse_serializable(what VARCHAR(100))
READS SQL DATA
BEGIN
    DECLARE gateways INT;
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
    SELECT COUNT(g.login) INTO gateways FROM installed_gateways AS g
    WHERE g.login = LEFT(USER(), CHAR_LENGTH(USER()) - CHAR_LENGTH(SUBSTRING_INDEX(USER(), '@', -1)) - 1);
    IF gateways > 0 OR @penstock_acting IS NOT NULL THEN
        CALL require_acting(what, gateways > 0);
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
