"""Load shapes and prompts, frozen into schedule files."""
