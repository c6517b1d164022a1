-- +goose Up

-- A ticket that is meant for somebody else must cost a claim nothing: target and assignee come before the order.
DROP INDEX tickets_claim;
CREATE INDEX tickets_claim ON tickets (project, state, target, assignee, unranked, rank, created_at, identifier)
    WHERE hold IS NULL AND busy = 0 AND wake_at IS NULL;
