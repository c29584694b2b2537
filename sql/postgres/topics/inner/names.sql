-- name: require_name
-- Checks one name, of a path or of anything else; raises PS030, PS031, PS033, PS034. The blanks and control
-- characters of Unicode are listed one by one, so that every engine and Python refuse the same ones.
CREATE OR REPLACE FUNCTION require_name(name text, what text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF name ~ $p$[\u0001-\u001f\u007f-\u009f]$p$ THEN
        PERFORM refuse('PS033', format('the name of a %s holds a control character', what),
                       'Use printable characters only.');
    ELSIF name IS NULL OR name ~ $p$^[ \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]*\Z$p$ THEN
        PERFORM refuse('PS030', format('the name of a %s is empty', what), 'Give a name of 1 to 500 characters.');
    ELSIF char_length(name) > 500 THEN
        PERFORM refuse('PS031', format('the name of a %s has %s characters', what, char_length(name)),
                       'Use at most 500 characters.');
    ELSIF strpos(name, '/') > 0 THEN
        PERFORM refuse('PS034', format('the name of a %s holds "/"', what), '"/" separates the names of a path.');
    END IF;
END
$$;

-- name: require_path
-- Checks the path of a namespace or of a topic (what says which); raises PS030 to PS034.
CREATE OR REPLACE FUNCTION require_path(path text, what text, longest integer) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    parts text[] := string_to_array(path, '/');
BEGIN
    IF path IS NULL OR path = '' THEN
        PERFORM refuse('PS030', format('the path of a %s is empty', what), 'Give its path, name/name/...');
    ELSIF char_length(path) > longest THEN
        PERFORM refuse('PS032', format('the path of a %s has %s characters', what, char_length(path)),
                       format('Use at most %s characters.', longest));
    END IF;
    FOR place IN 1 .. cardinality(parts) LOOP
        IF parts[place] = '' THEN
            PERFORM refuse('PS034', format('the %s "%s" has an empty name in its path', what, left(path, 80)),
                           'Write names with one / between them, none at the start or the end.');
        END IF;
        PERFORM require_name(parts[place], CASE WHEN place = cardinality(parts) THEN what ELSE 'namespace' END);
    END LOOP;
END
$$;

-- name: require_address
-- Checks the address of a topic; raises PS003 and PS030 to PS034.
CREATE OR REPLACE FUNCTION require_address(topic text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM require_path(topic, 'topic', 4000);
    IF strpos(topic, '/') = 0 THEN
        PERFORM refuse('PS003', format('the topic "%s" has no namespace', left(topic, 200)), 'Write namespace/topic.');
    END IF;
END
$$;

-- name: lock_names
-- Opens a change of names, which needs READ COMMITTED (PS018). A change that rewrites paths or removes names locks
-- the tree alone; a change that only adds a name shares it. This lock is taken before the locks of topics, and those
-- before the sequencer's lock, so that no two changes deadlock.
CREATE OR REPLACE FUNCTION lock_names(what text, alone boolean) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM require_read_committed(what);
    IF alone THEN
        PERFORM FROM name_tree FOR UPDATE;
    ELSE
        PERFORM FROM name_tree FOR SHARE;
    END IF;
END
$$;

-- name: parent_of
-- The part of a path before the last /; empty for a path of one name.
CREATE OR REPLACE FUNCTION parent_of(path text) RETURNS text
LANGUAGE sql IMMUTABLE STRICT AS $$
    SELECT left(path, -(strpos(reverse(path), '/'))) WHERE strpos(path, '/') > 0
    UNION ALL
    SELECT '' WHERE strpos(path, '/') = 0
$$;

-- name: name_of
-- The part of a path after the last /.
CREATE OR REPLACE FUNCTION name_of(path text) RETURNS text
LANGUAGE sql IMMUTABLE STRICT AS $$
    SELECT reverse(split_part(reverse(path), '/', 1))
$$;

-- name: refuse_taken
-- Raises the error that a name is taken (PS007).
CREATE OR REPLACE FUNCTION refuse_taken(what text, path text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM refuse('PS007', format('there is already %s %s "%s"', CASE WHEN what = 'account' THEN 'an' ELSE 'a' END,
                                   what, left(path, 200)), 'Choose another name.');
END
$$;
