"""Files and terminals: reading and writing, one policy for what is broken."""
