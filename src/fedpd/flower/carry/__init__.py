"""Messages between the server and its clients: their form, the list of clients, sending, collecting, and masking."""
