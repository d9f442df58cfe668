"""From run folders to something to read: tables, figures and one html page."""
