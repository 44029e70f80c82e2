"""Queuebell in the words of other frameworks: one file or folder for each, loaded by those who use it."""
