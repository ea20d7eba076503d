"""SQLite behind a thin adapter: transactions, schema migrations, copies."""
