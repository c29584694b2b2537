-- pgbench's own TPC-B tables: money moves between two accounts, and an event for each of them is published.
\set low random(1, 1000)
\set high random(1001, 2000)
\set teller random(1, 10 * :scale)
\set branch random(1, :scale)
\set amount random(-5000, 5000)
\set fate random(1, 100)
BEGIN;
UPDATE pgbench_accounts SET abalance = abalance - :amount WHERE aid = :low RETURNING abalance AS low_balance \gset
UPDATE pgbench_accounts SET abalance = abalance + :amount WHERE aid = :high RETURNING abalance AS high_balance \gset
SELECT penstock.publish('bank/accounts', key => '' || :low, type => 'moved', content_type => 'application/json',
    payload => convert_to(json_build_object('account', :low, 'delta', -(:amount), 'balance', :low_balance)::text, 'UTF8'));
SELECT penstock.publish('bank/accounts', key => '' || :high, type => 'moved', content_type => 'application/json',
    payload => convert_to(json_build_object('account', :high, 'delta', :amount, 'balance', :high_balance)::text, 'UTF8'));
UPDATE pgbench_tellers SET tbalance = tbalance + :amount WHERE tid = :teller;
UPDATE pgbench_branches SET bbalance = bbalance + :amount WHERE bid = :branch;
INSERT INTO pgbench_history (tid, bid, aid, delta, mtime) VALUES (:teller, :branch, :high, :amount, CURRENT_TIMESTAMP);
\if :fate <= 10
ROLLBACK;
\else
COMMIT;
\endif
