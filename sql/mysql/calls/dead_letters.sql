-- name: suspects
-- Held leases whose next events may break their consumer.
-- reads only
CALL penstock.suspects(%(subscription)s, %(consumer)s, %(partition_ids)s, %(lease_epochs)s)

-- name: begin_attempt
-- Counts that the next event after the position is handed out.
-- limits the session
CALL penstock.begin_attempt(
    %(subscription)s, %(consumer)s, %(partition_id)s, %(lease_epoch)s, %(sequence)s, %(uncounted)s, %(reason)s
)

-- name: bring_letter
-- Stores an event that only the archive has, for the call that makes it a dead letter.
-- limits the session
CALL penstock.bring_letter(
    %(subscription)s, %(consumer)s, %(partition_id)s, %(lease_epoch)s, %(sequence)s, %(event_id)s, %(key)s, %(type)s,
    %(content_type)s, %(headers)s, %(payload)s, %(created_at)s
)

-- name: give_up
-- Makes the next event after the position a dead letter and moves the position past it.
-- limits the session
CALL penstock.give_up(
    %(subscription)s, %(consumer)s, %(partition_id)s, %(lease_epoch)s, %(sequence)s, %(reason)s, %(attempts)s,
    %(park)s
)

-- name: parked_keys
-- The keys whose events wait.
-- reads only
CALL penstock.parked_keys(%(subscription)s, %(partition_ids)s)

-- name: commit_parking
-- Commits one partition and parks some of the events that it passes.
-- limits the session
CALL penstock.commit_parking(
    %(subscription)s, %(consumer)s, %(partition_id)s, %(lease_epoch)s, %(position)s, %(after)s, %(sequences)s
)

-- name: poll_redriven
-- Hands out redriven dead letters of held leases, and counts that.
-- limits the session
CALL penstock.poll_redriven(%(subscription)s, %(consumer)s, %(partition_ids)s, %(lease_epochs)s, %(max_events)s)

-- name: finish_redriven
-- Removes redriven dead letters that were handled.
-- limits the session
CALL penstock.finish_redriven(%(subscription)s, %(consumer)s, %(partition_id)s, %(lease_epoch)s, %(letter_ids)s)

-- name: fail_redriven
-- A redriven dead letter that was handed out is dead again.
-- limits the session
CALL penstock.fail_redriven(
    %(subscription)s, %(consumer)s, %(partition_id)s, %(lease_epoch)s, %(letter_id)s, %(reason)s
)

-- name: redrive
-- Makes dead letters deliverable again.
CALL penstock.redrive(%(subscription)s, %(letter_ids)s, %(keep_deliveries)s)

-- name: drop_dead_letters
-- Deletes dead letters.
CALL penstock.drop_dead_letters(%(subscription)s, %(letter_ids)s)

-- name: dead_letters_of
-- Dead letters without their payloads, newest first.
-- reads only
CALL penstock.dead_letters_of(
    %(subscription)s, %(max_rows)s, %(of_topic)s, %(of_key)s, %(of_type)s, %(of_state)s, %(before_id)s
)

-- name: dead_letter_of
-- One dead letter with all its columns.
-- reads only
CALL penstock.dead_letter_of(%(subscription)s, %(letter_id)s)

-- name: dead_letter_counts
-- How many dead letters one subscription has, or each subscription (NULL), by state, and the age of the
-- oldest.
-- reads only
CALL penstock.dead_letter_counts(%(subscription)s)

-- name: set_dead_letters_to
-- From now on dead letters are published to this topic too.
CALL penstock.set_dead_letters_to(%(subscription)s, %(topic)s, %(origin)s)

-- name: move_letters
-- Takes received copies of dead letters back to their subscription, or to another topic.
-- limits the session
CALL penstock.move_letters(
    %(subscription)s, %(claims)s, %(first_sequences)s, %(last_sequences)s, %(tokens)s, %(topic)s, %(keep_deliveries)s,
    %(asked_by)s
)

-- name: request_letter_task
-- Asks that all dead letters that match are redriven or dropped. Returns the task's id.
CALL penstock.request_letter_task(%(subscription)s, %(action)s, %(filter)s, %(reason)s)

-- name: note_letter_task
-- Records what was done for a task. Returns whether it stood there.
CALL penstock.note_letter_task(
    %(task_id)s, %(stood_below)s, %(next_below)s, %(looked)s, %(changed)s, %(is_over)s, %(problem)s
)

-- name: letter_tasks_of
-- Tasks for dead letters.
-- reads only
CALL penstock.letter_tasks_of(%(subscription)s, %(only_open)s, %(max_rows)s)

-- name: record_look
-- Records a look at a payload.
CALL penstock.record_look(%(person)s, %(subject)s)

-- name: list_looks
-- Looks at payloads, the newest first.
-- reads only
CALL penstock.list_looks(%(max_rows)s)

-- name: start_letter_move
-- Asks the sweep to move what a queue of dead letters has.
CALL penstock.start_letter_move(%(subscription)s, %(topic)s, %(most_per_second)s, %(expected)s)

-- name: letter_moves_of
-- The moves of a queue.
-- reads only
CALL penstock.letter_moves_of(%(subscription)s)

-- name: cancel_letter_move
-- Ends a move.
CALL penstock.cancel_letter_move(%(subscription)s, %(move_id)s)

-- name: next_letter_move
-- The next move that runs, locked.
CALL penstock.next_letter_move(%(after_id)s)

-- name: note_letter_move
-- Records what was moved.
CALL penstock.note_letter_move(%(move_id)s, %(moved)s, %(is_over)s, %(problem)s)
