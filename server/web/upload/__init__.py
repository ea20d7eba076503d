"""The page that uploads."""
