"""Where agents work: a fresh workspace for each trial, and sandboxes around it."""
