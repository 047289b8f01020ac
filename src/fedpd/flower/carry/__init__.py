"""Messages between the server and its clients: their form, who is there, orders sent and answers collected, masks."""
