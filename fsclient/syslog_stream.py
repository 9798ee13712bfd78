"""Sends log lines of a daemon without a log file to syslog (and so to the journal)."""

import io
import syslog


class SyslogStream(io.TextIOBase):
    """A text stream; every write is one line of the log."""

    def __init__(self, program: str) -> None:
        super().__init__()
        syslog.openlog(program, syslog.LOG_PID, syslog.LOG_DAEMON)

    def write(self, text: str, /) -> int:
        line = text.rstrip("\n")
        if line:
            syslog.syslog(_priority(line), line)
        return len(text)


def _priority(line: str) -> int:
    if " level=error " in line:
        return syslog.LOG_ERR
    return syslog.LOG_WARNING if " level=warning " in line else syslog.LOG_INFO
