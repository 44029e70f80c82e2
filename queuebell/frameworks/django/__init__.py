"""Queuebell within Django: an application for INSTALLED_APPS."""
