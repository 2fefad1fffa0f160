"""The demonstration: converts the spoken numbers, reads epochs over them, trains, is killed and resumes."""
