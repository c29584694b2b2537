-- By design: MySQL has crc32 built in.

-- name: crc32
-- CRC-32 (zlib) of bytes. PostgreSQL 18 has it built in; for older versions this is the form of RFC 1952 section 8 with
-- a table, which is made here and stands in the function as a constant. Each event with a key asks for it.
DO $install$
DECLARE
    step bigint;
    steps bigint[];
BEGIN
    IF current_setting('server_version_num')::integer < 180000 THEN
        FOR byte IN 0 .. 255 LOOP
            step := byte;
            FOR bit IN 1 .. 8 LOOP
                step := (step >> 1) # (3988292384 * (step & 1));
            END LOOP;
            steps := steps || step;
        END LOOP;
        EXECUTE format($create$
            CREATE OR REPLACE FUNCTION crc32(data bytea) RETURNS bigint
            LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $body$
            DECLARE
                crc bigint := 4294967295;
            BEGIN
                FOR i IN 0 .. octet_length(data) - 1 LOOP
                    crc := (crc >> 8) # (%L::bigint[])[((crc # get_byte(data, i)) & 255) + 1];
                END LOOP;
                RETURN crc # 4294967295;
            END
            $body$
        $create$, steps);
    END IF;
END
$install$;
