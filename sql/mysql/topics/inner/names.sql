-- name: require_name
-- Checks one name, of a path or of anything else; raises PS030, PS031, PS033, PS034. The blanks and control
-- characters of Unicode are listed one by one, so that every engine and Python refuse the same ones.
CREATE PROCEDURE require_name(name LONGTEXT, what VARCHAR(40))
NO SQL
BEGIN
    IF name REGEXP '[\\x{0}-\\x{1f}\\x{7f}-\\x{9f}]' THEN
        CALL refuse('PS033', CONCAT('the name of a ', what, ' holds a control character'));
    ELSEIF name IS NULL OR name REGEXP
        '^[ \\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}]*$' THEN
        CALL refuse('PS030', CONCAT('the name of a ', what, ' is empty'));
    ELSEIF CHAR_LENGTH(name) > 500 THEN
        CALL refuse('PS031', CONCAT('the name of a ', what, ' has ', CHAR_LENGTH(name), ' characters'));
    ELSEIF LOCATE('/', name) > 0 THEN
        CALL refuse('PS034', CONCAT('the name of a ', what, ' holds "/"'));
    END IF;
END;

-- name: require_path
-- Checks the path of a namespace or of a topic (what says which); raises PS030 to PS034.
CREATE PROCEDURE require_path(path LONGTEXT, what VARCHAR(40), longest INT)
NO SQL
BEGIN
    DECLARE rest LONGTEXT DEFAULT path;
    DECLARE part LONGTEXT;
    IF path IS NULL OR CHAR_LENGTH(path) = 0 THEN
        CALL refuse('PS030', CONCAT('the path of a ', what, ' is empty'));
    ELSEIF CHAR_LENGTH(path) > longest THEN
        CALL refuse('PS032', CONCAT('the path of a ', what, ' has ', CHAR_LENGTH(path), ' characters'));
    END IF;
    WHILE rest IS NOT NULL DO
        SET part = SUBSTRING_INDEX(rest, '/', 1);
        SET rest = IF(LOCATE('/', rest) > 0, SUBSTR(rest, LOCATE('/', rest) + 1), NULL);
        IF CHAR_LENGTH(part) = 0 THEN
            CALL refuse('PS034', CONCAT('the ', what, ' "', LEFT(path, 80), '" has an empty name in its path'));
        END IF;
        CALL require_name(part, IF(rest IS NULL, what, 'namespace'));
    END WHILE;
END;

-- name: require_address
-- Checks the address of a topic; raises PS003 and PS030 to PS034.
CREATE PROCEDURE require_address(topic LONGTEXT)
NO SQL
BEGIN
    CALL require_path(topic, 'topic', 4000);
    IF LOCATE('/', topic) = 0 THEN
        CALL refuse('PS003', CONCAT('the topic "', LEFT(topic, 80), '" has no namespace'));
    END IF;
END;

-- name: lock_names
-- Locks the names for a change, which needs READ COMMITTED (PS018). A change that rewrites paths or removes names
-- locks the tree alone; a change that only adds a name shares it. This lock is taken before the locks of topics, and
-- those before the sequencer's lock, so that no two changes deadlock.
CREATE PROCEDURE lock_names(what VARCHAR(100), alone BOOLEAN)
BEGIN
    DECLARE locked BOOLEAN;
    CALL require_read_committed(what);
    IF alone THEN
        SELECT t.singleton INTO locked FROM name_tree AS t FOR UPDATE;
    ELSE
        SELECT t.singleton INTO locked FROM name_tree AS t LOCK IN SHARE MODE;
    END IF;
END;

-- name: split_path
-- The part of a path before the last /, empty when there is none, and the part after it.
CREATE PROCEDURE split_path(path LONGTEXT, OUT parent LONGTEXT, OUT name LONGTEXT)
NO SQL
BEGIN
    SET name = SUBSTRING_INDEX(path, '/', -1);
    SET parent = LEFT(path, GREATEST(CHAR_LENGTH(path) - CHAR_LENGTH(name) - 1, 0));
END;
