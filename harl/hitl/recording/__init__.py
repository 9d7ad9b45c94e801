"""What people did, on the disk: written, read, exported, and taken out again."""
