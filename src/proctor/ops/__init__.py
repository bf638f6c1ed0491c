"""Operations: notifications, log files, and scheduled runs."""
