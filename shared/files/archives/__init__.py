"""Archives: ZIPs of all kinds, and tar files that users send."""
