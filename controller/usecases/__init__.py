"""What people ask of Forecrest, one verb at a time: take ports, own the transaction, name every refusal."""
