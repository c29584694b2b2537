-- name: suspects
-- Held leases whose next events may break their consumer.
SELECT partition_id, died, sequence, attempts, reason
FROM penstock.suspects(%(subscription)s, %(consumer)s, %(partition_ids)s::bigint[], %(lease_epochs)s::bigint[])

-- name: begin_attempt
-- Counts that the next event after the position is handed out.
SELECT penstock.begin_attempt(
    %(subscription)s, %(consumer)s, %(partition_id)s::bigint, %(lease_epoch)s::bigint, %(sequence)s::bigint,
    %(uncounted)s::integer, %(reason)s
)

-- name: bring_letter
-- Stores an event that only the archive has, for the call that makes it a dead letter.
SELECT penstock.bring_letter(
    %(subscription)s, %(consumer)s, %(partition_id)s::bigint, %(lease_epoch)s::bigint, %(sequence)s::bigint,
    %(event_id)s::uuid, %(key)s, %(type)s, %(content_type)s, %(headers)s::jsonb, %(payload)s::bytea,
    %(created_at)s::timestamptz
)

-- name: give_up
-- Makes the next event after the position a dead letter and moves the position past it.
SELECT penstock.give_up(
    %(subscription)s, %(consumer)s, %(partition_id)s::bigint, %(lease_epoch)s::bigint, %(sequence)s::bigint,
    %(reason)s, %(attempts)s::integer, %(park)s::boolean
)

-- name: parked_keys
-- The keys whose events wait.
SELECT partition_id, key FROM penstock.parked_keys(%(subscription)s, %(partition_ids)s::bigint[])

-- name: commit_parking
-- Commits one partition and parks some of the events that it passes.
SELECT penstock.commit_parking(
    %(subscription)s, %(consumer)s, %(partition_id)s::bigint, %(lease_epoch)s::bigint, %(position)s::bigint,
    %(after)s::bigint, %(sequences)s::bigint[]
)

-- name: poll_redriven
-- Hands out redriven dead letters of held leases, and counts that.
SELECT
    letter_id, attempts, parked, history, partition_id, sequence, event_id, key, type, content_type, headers::text,
    payload, created_at
FROM penstock.poll_redriven(
    %(subscription)s, %(consumer)s, %(partition_ids)s::bigint[], %(lease_epochs)s::bigint[], %(max_events)s::integer
)

-- name: finish_redriven
-- Removes redriven dead letters that were handled.
SELECT penstock.finish_redriven(
    %(subscription)s, %(consumer)s, %(partition_id)s::bigint, %(lease_epoch)s::bigint, %(letter_ids)s::bigint[]
)

-- name: fail_redriven
-- A redriven dead letter that was handed out is dead again.
SELECT penstock.fail_redriven(
    %(subscription)s, %(consumer)s, %(partition_id)s::bigint, %(lease_epoch)s::bigint, %(letter_id)s::bigint,
    %(reason)s
)

-- name: redrive
-- Makes dead letters deliverable again.
SELECT penstock.redrive(%(subscription)s, %(letter_ids)s::bigint[], %(keep_deliveries)s)

-- name: drop_dead_letters
-- Deletes dead letters.
SELECT penstock.drop_dead_letters(%(subscription)s, %(letter_ids)s::bigint[])

-- name: dead_letters_of
-- Dead letters without their payloads, newest first.
SELECT
    id, topic, partition, sequence, history, event_id, key, type, content_type, payload_bytes, state, attempts, reason,
    created_at, died_at, forwarded_to, forwarded_as, not_forwarded
FROM penstock.dead_letters_of(
    %(subscription)s::text, %(max_rows)s::integer, %(of_topic)s::text, %(of_key)s::text, %(of_type)s::text,
    %(of_state)s::text, %(before_id)s::bigint
)

-- name: dead_letter_of
-- One dead letter with all its columns. Headers come as text, as in fetch.
SELECT
    id, topic, partition, sequence, history, event_id, key, type, content_type, payload_bytes, state, attempts, reason,
    created_at, died_at, forwarded_to, forwarded_as, not_forwarded, headers::text, payload
FROM penstock.dead_letter_of(%(subscription)s, %(letter_id)s::bigint)

-- name: dead_letter_counts
-- How many dead letters one subscription has, or each subscription (NULL), by state, and the age of the
-- oldest.
SELECT subscription, dead, parked, redriven, oldest_seconds, forwarded, not_forwarded
FROM penstock.dead_letter_counts(%(subscription)s)

-- name: set_dead_letters_to
-- From now on dead letters are published to this topic too.
SELECT penstock.set_dead_letters_to(%(subscription)s, %(topic)s, %(origin)s)

-- name: move_letters
-- Takes received copies of dead letters back to their subscription, or to another topic.
SELECT penstock.move_letters(
    %(subscription)s, %(claims)s::bigint[], %(first_sequences)s::bigint[], %(last_sequences)s::bigint[],
    %(tokens)s::uuid[], %(topic)s, %(keep_deliveries)s, %(asked_by)s
)

-- name: request_letter_task
-- Asks that all dead letters that match are redriven or dropped. Returns the task's id.
SELECT penstock.request_letter_task(%(subscription)s, %(action)s, %(filter)s, %(reason)s)

-- name: note_letter_task
-- Records what was done for a task. Returns whether it stood there.
SELECT penstock.note_letter_task(
    %(task_id)s::bigint, %(stood_below)s::bigint, %(next_below)s::bigint, %(looked)s::bigint, %(changed)s::bigint,
    %(is_over)s::boolean, %(problem)s
)

-- name: letter_tasks_of
-- Tasks for dead letters.
SELECT
    id, subscription, action, filter, reason, requested_by, requested_at, begun_below, next_below, looked, changed,
    ended_at, problem
FROM penstock.letter_tasks_of(%(subscription)s, %(only_open)s::boolean, %(max_rows)s::integer)

-- name: record_look
-- Records a look at a payload.
SELECT penstock.record_look(%(person)s, %(subject)s)

-- name: list_looks
-- Looks at payloads, the newest first.
SELECT at, by, person, subject FROM penstock.list_looks(%(max_rows)s::integer)

-- name: start_letter_move
-- Asks the sweep to move what a queue of dead letters has.
SELECT penstock.start_letter_move(%(subscription)s, %(topic)s, %(most_per_second)s::integer, %(expected)s::bigint)

-- name: letter_moves_of
-- The moves of a queue.
SELECT id, topic, most_per_second, expected, moved, started_at, ended_at, state, problem
FROM penstock.letter_moves_of(%(subscription)s)

-- name: cancel_letter_move
-- Ends a move.
SELECT penstock.cancel_letter_move(%(subscription)s, %(move_id)s::bigint)

-- name: next_letter_move
-- The next move that runs, locked.
SELECT id, subscription, topic, room, problem, asked_by FROM penstock.next_letter_move(%(after_id)s::bigint)

-- name: note_letter_move
-- Records what was moved.
SELECT penstock.note_letter_move(%(move_id)s::bigint, %(moved)s::bigint, %(is_over)s::boolean, %(problem)s)
