"""What runs inside the sandbox, untrusted from the moment it is there. Nothing on the host imports from here."""
