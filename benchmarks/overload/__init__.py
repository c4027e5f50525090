"""What a server does when it is offered more than it can do."""
