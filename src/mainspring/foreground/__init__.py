"""A worker as the whole purpose of a process: what it says, how others see how it is, and until when it runs."""

from mainspring.foreground.foreground import Application, Foreground
from mainspring.foreground.voice import PlainVoice, Voice

__all__ = ["Application", "Foreground", "PlainVoice", "Voice"]
