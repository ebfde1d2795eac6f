package apiserver

import (
	"fmt"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// As gives the rights of a user of these groups, who comes with a client certificate.
func (s *Server) As(name string, groups ...string) (*rest.Config, error) {
	user, err := s.environment.AddUser(envtest.User{Name: name, Groups: groups}, nil)
	if err != nil {
		return nil, fmt.Errorf("adding user %s: %w", name, err)
	}

	return user.Config(), nil
}
