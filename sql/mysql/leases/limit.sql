-- By design: on MySQL a time limit stays with the session; on PostgreSQL it ends with the transaction.

-- name: lift_limit
-- Restores the session's own time limit, if it still has the one that a call set for the transaction in which it had
-- locked a lease row. It is called after the end of that transaction on MySQL, where the limit belongs to the
-- session. The session may write anything into the variables, so a value that is not a time limit is ignored.
CREATE PROCEDURE lift_limit()
NO SQL
BEGIN
    IF CAST(@penstock_limit AS CHAR) = @@SESSION./*!80000 wait_timeout */ /*M! idle_transaction_timeout */
        AND CAST(@penstock_own_limit AS CHAR) REGEXP '^[0-9]{1,8}$' THEN
        SET SESSION /*!80000 wait_timeout */ /*M! idle_transaction_timeout */ = CAST(@penstock_own_limit AS UNSIGNED);
    END IF;
    SET @penstock_limit = NULL;
END;
