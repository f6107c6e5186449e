"""The figures of a report: each one panel, so that it is readable at the width of a phone and of a printed column."""
