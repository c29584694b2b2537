-- By design: MySQL has crc32 built in.

-- name: crc32
-- CRC-32 (zlib) of bytes. PostgreSQL 18 has it built in; for older versions this is the bitwise form of RFC 1952
-- section 8.
DO $install$
BEGIN
    IF current_setting('server_version_num')::integer < 180000 THEN
        EXECUTE $create$
            CREATE OR REPLACE FUNCTION crc32(data bytea) RETURNS bigint
            LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $body$
            DECLARE
                crc bigint := 4294967295;
            BEGIN
                FOR i IN 0 .. octet_length(data) - 1 LOOP
                    crc := crc # get_byte(data, i);
                    FOR bit IN 1 .. 8 LOOP
                        crc := (crc >> 1) # (3988292384 * (crc & 1));
                    END LOOP;
                END LOOP;
                RETURN crc # 4294967295;
            END
            $body$
        $create$;
    END IF;
END
$install$;
