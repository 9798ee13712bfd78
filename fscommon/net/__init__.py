"""Connections: the Transport waist, dialling, serving, and authenticated streams of frames."""
