"""Notifications: milestones of prewarms and alarms, told to webhooks. See docs/notifications.md."""
