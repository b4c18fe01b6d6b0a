-- A role for Grafana that may read what the dashboards read, and nothing else. Run it in
-- Forecrest's database as a superuser, or as the tables' owner with CREATEROLE; again does no harm:
--   psql -d forecrest -v ON_ERROR_STOP=1 -f deploy/grafana/reader.sql
-- Then give it a password: \password forecrest_grafana
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'forecrest_grafana') THEN
        CREATE ROLE forecrest_grafana LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOINHERIT CONNECTION LIMIT 10;
    END IF;
    EXECUTE format('GRANT CONNECT ON DATABASE %I TO forecrest_grafana', current_database());
END
$$;
-- A panel that asks for too much must not hold up the control loop.
ALTER ROLE forecrest_grafana SET default_transaction_read_only = on;
ALTER ROLE forecrest_grafana SET statement_timeout = '15s';
ALTER ROLE forecrest_grafana SET lock_timeout = '2s';
ALTER ROLE forecrest_grafana SET idle_in_transaction_session_timeout = '30s';

GRANT USAGE ON SCHEMA public TO forecrest_grafana;
-- Partitions are read through their parents. Not among these: audit_log, idempotency_keys, event_revisions.
GRANT SELECT ON capacity_plans, contracts, decisions, forecast_scores, forecast_standings, forecasts, leases,
    traffic_samples, warmups TO forecrest_grafana;
