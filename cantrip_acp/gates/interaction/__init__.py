"""Gates that end a cast, or that reach the user: done, ask_user, plan and the client's terminal."""
