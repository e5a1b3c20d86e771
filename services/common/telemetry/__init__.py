"""What a process tells of itself: events, and the spans of what it works on."""
