"""The dashboard: pages for people, made on the server. They work without scripts, too."""
