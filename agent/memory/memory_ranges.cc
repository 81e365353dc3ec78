// written in its room
