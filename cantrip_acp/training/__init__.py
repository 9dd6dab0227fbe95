"""What trains models from looms: rewards, exports and imports."""
