"""Callbacks for trainers; each module needs its trainer's library and is imported on its own."""
