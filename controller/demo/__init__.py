"""The three-minute demo: real servers, real requests, production code on a faster clock."""
