-- name: refuse
-- Raises one of Penstock's errors (SQLSTATE class PS): what was wrong, and what to do as the hint.
CREATE OR REPLACE FUNCTION refuse(code text, problem text, remedy text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = code, MESSAGE = problem, HINT = remedy;
END
$$;
